"""Whether all kernels agree: the same short scenarios in each of them, and their figures side by side.

`places` are kernels with a clock, `measuring` runs the scenarios there, `figures` takes from each run what
has to agree, `agreement` puts that side by side and says whether it does, `page` writes it down.
"""
