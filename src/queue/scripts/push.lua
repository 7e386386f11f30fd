-- Adds jobs to the end of a queue.
--
-- KEYS  1  queues:default
--       2  queues:default:notify; absent for apps before Laravel 5.8
-- ARGV  payloads
--
-- Returns the length of the queue.

local length = 0
-- A call takes as many values as Lua's stack holds.
for first = 1, #ARGV, 1000 do
  local last = math.min(first + 999, #ARGV)
  length = redis.call('RPUSH', KEYS[1], unpack(ARGV, first, last))
  if KEYS[2] then
    local notes = {}
    for note = 1, last - first + 1 do notes[note] = '1' end
    redis.call('RPUSH', KEYS[2], unpack(notes))
  end
end
return length
