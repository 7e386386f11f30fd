-- Deletes reserved jobs.
--
-- KEYS  1  queues:default:reserved
-- ARGV  members as they were reserved
--
-- Returns the positions (from 1) of members that were not there: their
-- reservation had ended and another worker has the job.

local gone = {}
for i, member in ipairs(ARGV) do
  if redis.call('ZREM', KEYS[1], member) == 0 then gone[#gone + 1] = i end
end
return gone
