"""What Redis runs for each call: the rules of `adapters.claiming`, in one step on one key.

A record is a hash: `tick` in microseconds and `until` in milliseconds since 1970, the others
as in `ClaimRecord`. All times are the server's. A number that isn't there is an empty argument.
"""

from __future__ import annotations

from datetime import timedelta

from mega.ports import FAR_AHEAD

__all__ = ["CLAIM", "EXTEND", "KEEP", "LAST_TICK", "RELEASE", "TIME"]

#: How long a record outlives its last use, in milliseconds. A schedule that runs once a year is
#: to find its last tick again.
KEEP = 400 * 24 * 3600 * 1000

_RECORD = f"""
local FAR_AHEAD = {FAR_AHEAD // timedelta(microseconds=1)}
local key = KEYS[1]
local known = redis.call('HMGET', key, 'tick', 'claimed_by', 'running', 'owner', 'until', 'fence')
local last, claimed_by, running = tonumber(known[1] or ''), known[2] or '', known[3] or ''
local owner, ends, fence = known[4] or '', tonumber(known[5] or 0), tonumber(known[6] or 0)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function write(lease, ...)
  redis.call('HSET', key, ...)
  redis.call('PEXPIRE', key, {KEEP} + lease)
end
"""

# Arguments: owner, tick, lease. A call that is repeated because its answer was lost is answered
# as it was before.
CLAIM = (
    _RECORD
    + """
local me, tick, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local is_repeated = tick and tick == last and claimed_by == me
if is_repeated and running ~= '' then return {'running', running} end
local is_mistaken = tick and last and last - tick > FAR_AHEAD and last - now * 1000 > FAR_AHEAD
if tick and last and tick <= last and not is_repeated and not is_mistaken then
  return {'taken', claimed_by}
end

local is_busy = owner ~= '' and owner ~= me and ends > now
if tick then
  write(0, 'tick', ARGV[2], 'claimed_by', me, 'running', is_busy and owner or '')
end
if is_busy then return {'running', owner} end

if not (is_repeated and (owner == me or not lease)) then
  fence = math.max(fence + 1, math.floor((tick or now * 1000) / 1000))
end
write(lease or 0, 'fence', fence)
if lease then write(lease, 'owner', me, 'until', now + lease) end
return {'claimed', fence}
"""
)

# Arguments: owner, tick, lease, fence.
EXTEND = (
    _RECORD
    + """
local me, tick, lease, mine = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
if owner ~= '' and owner ~= me then return {'lost', owner} end
if fence > mine or (tick and tick == last and claimed_by ~= me) then
  return {'lost', claimed_by == me and '' or claimed_by}
end

write(lease, 'owner', me, 'until', now + lease, 'fence', mine)
if tick and (not last or last < tick) then
  write(lease, 'tick', ARGV[2], 'claimed_by', me, 'running', '')
end
return {owner == me and 'held' or 'retaken'}
"""
)

# Arguments: owner, fence. One of several servers may know a lower fence than the claim has.
RELEASE = (
    _RECORD
    + """
if owner == ARGV[1] then
  redis.call('HDEL', key, 'owner', 'until')
  write(0, 'fence', math.max(fence, tonumber(ARGV[2])))
end
"""
)

LAST_TICK = "return redis.call('HGET', KEYS[1], 'tick')"

TIME = "return redis.call('TIME')"
