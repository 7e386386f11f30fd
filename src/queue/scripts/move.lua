-- Moves reserved jobs elsewhere: only jobs that are still reserved.
--
-- KEYS
--   1  queues:default:reserved
--   2  target: queues:default:delayed, queues:other, queues:default:quarantine
--   3  queues:other:notify; absent if no worker is to be notified
-- ARGV
--   1  `delay` (ZADD), `append` (RPUSH), `prepend` (LPUSH), or `expire`: the job
--      stays reserved until the score
--   2+ three per job: the reserved member; the value to add, empty for the member; the score for `delay`
--      and `expire`
--
-- Returns the positions (from 1) of members that were not there. Nothing is
-- added for those: unlike Laravel's release, a job whose reservation had ended
-- is not doubled. The value is added before the reservation is removed.

-- Changes nothing: a full Redis refuses what may need memory as the first write of a script.
redis.call('ZREMRANGEBYRANK', KEYS[1], 1, 0)
local commands = { append = 'RPUSH', prepend = 'LPUSH' }
local gone = {}
-- In reverse order, so that the first of several jobs ends up first.
local from, to, step = 2, #ARGV, 3
if ARGV[1] == 'prepend' then from, to, step = #ARGV - 2, 2, -3 end
for i = from, to, step do
  local member, value = ARGV[i], ARGV[i + 1]
  if value == '' then value = member end
  if redis.call('ZSCORE', KEYS[1], member) then
    if ARGV[1] == 'expire' then
      redis.call('ZADD', KEYS[1], ARGV[i + 2], member)
    else
      if ARGV[1] == 'delay' then
        redis.call('ZADD', KEYS[2], ARGV[i + 2], value)
      else
        redis.call(commands[ARGV[1]], KEYS[2], value)
        if KEYS[3] then redis.call('RPUSH', KEYS[3], '1') end
      end
      redis.call('ZREM', KEYS[1], member)
    end
  else
    gone[#gone + 1] = (i + 1) / 3
  end
end
return gone
