-- Moves payloads from the quarantine back to their queue, or deletes them there.
--
-- KEYS  1  queues:default:quarantine
--       2  queues:default; absent to delete
--       3  queues:default:notify; absent if no worker is to be notified
-- ARGV  payloads
--
-- Returns how many were found and moved.

local moved = 0
for _, payload in ipairs(ARGV) do
  if KEYS[2] then redis.call('RPUSH', KEYS[2], payload) end
  if redis.call('LREM', KEYS[1], 1, payload) == 1 then
    moved = moved + 1
    if KEYS[3] then redis.call('RPUSH', KEYS[3], '1') end
  elseif KEYS[2] then
    redis.call('RPOP', KEYS[2])
  end
end
return moved
