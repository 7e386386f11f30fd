-- Adds jobs to the end of a queue.
--
-- KEYS  1  queues:default
--       2  queues:default:notify; absent for apps before Laravel 5.8
-- ARGV  payloads
--
-- Returns the length of the queue.

local length = 0
for _, payload in ipairs(ARGV) do
  length = redis.call('RPUSH', KEYS[1], payload)
  if KEYS[2] then redis.call('RPUSH', KEYS[2], '1') end
end
return length
