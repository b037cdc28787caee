-- The rules of agents/policies/bandwidth_aware.py as an HTTP service: lua5.4, lua-socket, lua-cjson, no framework.
-- Usage: lua5.4 bandwidth_aware.lua PORT
-- docs/scheduler-service.md has the protocol. What /start says never changes and is kept here; what changes travels
-- in `memory`, so that the same question always gets the same answer. One thing is left out: what prompts leave to
-- compute is not learnt, so it decides like the original where no prefix is ever cached.

local cjson, socket = require("cjson"), require("socket")
local inf = math.huge

local P = {
    rtt_rise_s = 0.002, backlog_delay_s = 0.1,
    search_tau_s = 1, settle_tau_s = 4, suspect_intervals = 2, suspect_share = 0.7, quiet_s = 4, raise_per_s = 1.5,
    dead_band = 0.03, move_interval_s = 1, surge_wait_s = 15, surge_horizon_s = 60, surge_share = 0.06,
}
local system, lengths, sums, ceiling_bps

-- To the nearest whole number, halves to the even one.
local function round(x)
    local whole = math.floor(x)
    local rest = x - whole
    if rest > 0.5 or (rest == 0.5 and whole % 2 == 1) then whole = whole + 1 end
    return math.tointeger(whole)
end

-- The throughput model ------------------------------------------------------------------------------------------

-- How many lengths are at most `tokens` (below it, with `below`).
local function count(tokens, below)
    local low, high = 1, #lengths + 1
    while low < high do
        local middle = (low + high) // 2
        local counts = lengths[middle] < tokens or (not below and lengths[middle] == tokens)
        if counts then low = middle + 1 else high = middle end
    end
    return low - 1
end

-- Seconds to prefill so many tokens: a power law between measured points.
local function prefill_s(cluster, tokens)
    local knots, right = cluster.prefill_s, 2
    while right < #knots and knots[right][1] <= tokens do right = right + 1 end
    local from, to = knots[right - 1], knots[right]
    local slope = math.log(to[2] / from[2]) / math.log(to[1] / from[1])
    return from[2] * math.exp(slope * math.log(tokens / from[1]))
end

local function mean_long(short) return (sums[#lengths] - sums[short]) / (#lengths - short) end
local function kv_bits(tokens)
    return 8 * system.kv_scale * (system.kv_bytes_per_token * tokens + system.kv_fixed_bytes)
end

-- Requests per second that each side takes where the `short` shortest lengths stay; `load` is taken off first.
local function theta_prfaas(short, egress_bps, load)
    local compute = system.prfaas.prefill_instances / prefill_s(system.prfaas, mean_long(short)) - load.prfaas
    if not egress_bps then return math.max(compute, 0) end
    return math.max(math.min(compute, (egress_bps - load.egress_bps) / kv_bits(mean_long(short))), 0)
end
local function theta_pd(short, load)
    return math.max(system.pd.prefill_instances / prefill_s(system.pd, sums[short] / short) - load.pd, 0)
end
local IDLE = { prfaas = 0, pd = 0, egress_bps = 0 }

local function boundary(short)
    if short == 0 then return 0 end
    if short == #lengths then return system.pd.max_tokens end
    return (lengths[short] + lengths[short + 1]) / 2
end
local function hundreds(tokens) return round(tokens / 100) * 100 end

-- The better threshold below or at a length that many requests have, those after `first` up to `last`.
local function beside(first, last, egress_bps, load)
    local function sustained(short)
        local long, away, here = #lengths - short, inf, inf
        if long > 0 then away = theta_prfaas(short, egress_bps, load) / long end
        if short > 0 then here = theta_pd(short, load) / short end
        return math.min(away, here)
    end
    local tokens = lengths[first + 1]
    if sustained(first) > sustained(last) then
        local least = first > 0 and lengths[first] or 0
        return math.min(math.max(hundreds(boundary(first)), least), tokens - 1)
    end
    local most = last < #lengths and lengths[last + 1] - 1 or system.pd.max_tokens
    return math.min(math.max(hundreds(boundary(last)), tokens), most)
end

-- Where both sides are used equally, found by bisection.
local function best_threshold(egress_bps, load)
    local low, high, relief_low, relief_high = 0, #lengths, -inf, inf
    while high - low > 1 do
        local middle = (low + high) // 2
        local away, here, value = theta_prfaas(middle, egress_bps, load), theta_pd(middle, load), nil
        if away == 0 then value = -inf elseif here == 0 then value = inf
        else value = math.log(away / here * middle / (#lengths - middle)) end
        if value < 0 then low, relief_low = middle, value else high, relief_high = middle, value end
    end
    local tokens = lengths[low + 1]
    local first, last = count(tokens, true), count(tokens)
    if last - first > 1 then return beside(first, last, egress_bps, load) end
    local exact = boundary(high)
    if relief_high == inf and high < #lengths then exact = boundary(low)
    elseif relief_low ~= -inf and relief_high ~= inf then
        exact = boundary(low) + (boundary(high) - boundary(low)) * relief_low / (relief_low - relief_high)
    end
    return math.min(hundreds(exact), system.pd.max_tokens)
end

-- The most that the system ever sends: what its best threshold takes of a link that does not bind.
local function ceiling()
    local short = count(best_threshold(nil, IDLE))
    local share_long, share_short = (#lengths - short) / #lengths, short / #lengths
    if share_long == 0 then return 0 end
    local per_s = theta_prfaas(short, nil, IDLE) / share_long
    if share_short > 0 then per_s = math.min(per_s, theta_pd(short, IDLE) / share_short) end
    local pd = system.pd
    per_s = math.min(per_s, pd.decode_instances * pd.batch / (pd.decode_step_s * system.output_tokens))
    return per_s * share_long * kv_bits(mean_long(short))
end

-- The capacity that TCP shows -----------------------------------------------------------------------------------

-- The memory after one more interval.
local function observe(m, view)
    local e = view.egress
    local elapsed = math.min(math.max(view.t_s - m.t_s, 0), 1)
    local risen = e.rtt_s - e.min_rtt_s > P.rtt_rise_s
    local stood = math.min(m.backlog_bytes, e.backlog_bytes) >= math.max(e.acked_bytes, 1)
    local saturated = stood and (e.acked_bytes == 0 or e.retrans_bytes > 0 or risen)
    local delayed = 8 * e.backlog_bytes > P.backlog_delay_s * e.goodput_bps
    local pressed = e.retrans_bytes > 0 and (risen or delayed)

    local suspicion = pressed and math.min(m.suspicion + 1, P.suspect_intervals) or math.max(m.suspicion - 0.5, 0)
    local poor = e.goodput_bps < P.suspect_share * ceiling_bps
    if pressed and poor and e.retrans_bytes > 0.01 * e.acked_bytes then suspicion = P.suspect_intervals end
    if e.goodput_bps >= ceiling_bps then suspicion = 0 end
    local before = m.capacity_bps
    local credit = (not before or e.goodput_bps >= 0.5 * before) and 1 or 0.25
    local quiet_s = (saturated or pressed) and 0 or m.quiet_s + elapsed * credit

    local estimate, proven = before or ceiling_bps, math.min(m.goodput_bps, e.goodput_bps)
    if proven > 1.25 * estimate then
        estimate = proven
    elseif not before and suspicion >= P.suspect_intervals then
        estimate = P.suspect_share * ceiling_bps
    elseif saturated then
        local far = math.abs(e.goodput_bps - estimate) > 0.35 * estimate
        local far_before = math.abs(m.goodput_bps - estimate) > 0.35 * estimate
        if not m.settled or not far or far_before then
            local tau_s = (far or not m.settled) and P.search_tau_s or P.settle_tau_s
            estimate = estimate + (e.goodput_bps - estimate) * (1 - math.exp(-elapsed / tau_s))
        end
    elseif before and quiet_s >= P.quiet_s then
        estimate = estimate * P.raise_per_s ^ (elapsed * credit)
    end
    local capacity = estimate < ceiling_bps and math.max(estimate, 0.01 * ceiling_bps) or nil
    local met = saturated and e.goodput_bps >= (before or ceiling_bps)
    return {
        capacity_bps = capacity, t_s = view.t_s, backlog_bytes = e.backlog_bytes, goodput_bps = e.goodput_bps,
        suspicion = suspicion, settled = capacity ~= nil and (m.settled or met), quiet_s = quiet_s, moved_s = m.moved_s,
    }
end

-- What queues beyond some seconds of work ask of each side.
local function load_of(state, capacity, view)
    local short = count(state.threshold_tokens)
    local function excess(waiting, per_s)
        local over = math.max(waiting - P.surge_wait_s * per_s, 0)
        return math.min(over / P.surge_horizon_s, P.surge_share * per_s)
    end
    local away, here = inf, inf
    if short < #lengths then away = theta_prfaas(short, capacity, IDLE) end
    if short > 0 then here = theta_pd(short, IDLE) end
    return {
        prfaas = excess(view.queue_prfaas, away), pd = excess(view.queue_pd, here),
        egress_bps = capacity and excess(8 * view.egress.backlog_bytes, capacity) or 0,
    }
end

-- The three questions -------------------------------------------------------------------------------------------

local answer = {}

answer["/start"] = function(asked)
    system, lengths, sums = asked, asked.lengths_tokens, { [0] = 0 }
    for name in pairs(asked.params) do error("takes no parameters, found " .. name) end
    for i, tokens in ipairs(lengths) do sums[i] = sums[i - 1] + tokens end
    ceiling_bps = ceiling()
    local memory = { t_s = 0, backlog_bytes = 0, goodput_bps = 0, suspicion = 0, quiet_s = 0, moved_s = 0 }
    memory.settled = false
    return { threshold_tokens = asked.threshold_tokens, reason = "configured threshold", memory = memory }
end

answer["/route"] = function(asked)
    local uncached = asked.request.input_tokens - asked.request.cached_pd_tokens
    local threshold = asked.state.threshold_tokens
    local stays = uncached <= threshold
    local reason = ("%d uncached tokens %s %d"):format(uncached, stays and "<=" or ">", threshold)
    return { route = stays and "pd" or "prfaas", threshold_tokens = threshold, reason = reason }
end

answer["/update"] = function(asked)
    local state, view = asked.state, asked.view
    local m = observe(state.memory, view)
    local capacity, threshold, reason = m.capacity_bps, state.threshold_tokens, state.reason
    local load = load_of(state, capacity, view)
    local target = best_threshold(capacity, load)
    if math.abs(target - threshold) > P.dead_band * threshold and view.t_s - m.moved_s >= P.move_interval_s then
        local surge = load.prfaas > 0 or load.pd > 0 or load.egress_bps > 0
        reason = "egress capacity " .. (capacity and ("%.2f Gbps"):format(capacity / 1e9) or "not binding")
        threshold, reason, m.moved_s = target, reason .. (surge and ", queue surge" or ""), view.t_s
    end
    return { threshold_tokens = threshold, capacity_bps = capacity, reason = reason, memory = m }
end

-- JSON and HTTP -------------------------------------------------------------------------------------------------

-- As JSON: cjson would round numbers to 14 digits, and the last bit may decide.
local function encode(value)
    if type(value) == "number" then return ("%.17g"):format(value) end
    if type(value) ~= "table" then return cjson.encode(value) end
    local fields = {}
    for name, field in pairs(value) do fields[#fields + 1] = ("%s:%s"):format(cjson.encode(name), encode(field)) end
    table.sort(fields)
    return "{" .. table.concat(fields, ",") .. "}"
end

local function serve(client)
    while true do
        local line = client:receive("*l")
        if not line then return client:close() end
        local path, length = line:match("^POST (%S+)"), 0
        repeat
            local header = client:receive("*l") or ""
            length = tonumber(header:lower():match("^content%-length:%s*(%d+)")) or length
        until header == ""
        local body, status = client:receive(length), "200 OK"
        local ok, found = pcall(function() return encode(answer[path](cjson.decode(body))) end)
        if not ok then status = "500 Internal Server Error" end
        client:send(("HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s"):format(status, #found, found))
    end
end

local server = assert(socket.bind("127.0.0.1", tonumber(arg[1])))
while true do serve(server:accept()) end
