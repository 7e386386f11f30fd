-- Moves the end of reservations.
--
-- KEYS  1  queues:default:reserved
-- ARGV  1   second at which the reservations end now
--       2+  members as they were reserved
--
-- Returns the positions (from 1) of members that were not there: their
-- reservation had ended, and stays so.

local lost = {}
-- Changes nothing: a full Redis refuses ZADD as the first write of a script.
redis.call('ZREMRANGEBYRANK', KEYS[1], 1, 0)
for i = 2, #ARGV do
  if redis.call('ZSCORE', KEYS[1], ARGV[i]) then
    redis.call('ZADD', KEYS[1], ARGV[1], ARGV[i])
  else
    lost[#lost + 1] = i - 1
  end
end
return lost
