-- Pushes a job unless it was pushed before.
--
-- KEYS
--   1  artisand:pushed:<id>
--   2  queues:default, or queues:default:delayed
--   3  queues:default:notify; absent where nobody is to be told
-- ARGV
--   1  the payload
--   2  when it becomes due; empty for at once
--   3  seconds for which it is remembered
--
-- Returns 1 if it was pushed now.

-- Pushed first: if that fails, it is not remembered.
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
if ARGV[2] ~= '' then
  redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
else
  redis.call('RPUSH', KEYS[2], ARGV[1])
  if KEYS[3] then redis.call('RPUSH', KEYS[3], '1') end
end
redis.call('SETEX', KEYS[1], ARGV[3], '1')
return 1
