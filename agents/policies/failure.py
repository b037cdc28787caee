"""What a policy that broke is said to have done."""


class PolicyFailure(Exception):  # noqa: N818 - it is what happened
    """The policy crashed, hung, answered nonsense or broke its protocol; the text says which."""
