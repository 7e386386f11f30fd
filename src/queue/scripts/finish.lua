-- Ends reserved jobs and applies the effects of their ends: only for jobs that
-- are still reserved.
--
-- KEYS
--   1   queues:default:reserved
--   2+  keys of the effects
-- ARGV
--   per job: the reserved member; the number of effects; the effects, see effects.lua
--
-- Returns the positions (from 1) of members that were not there. For those
-- nothing happens: another worker has the job, and handles its end.

local jobs = {}
local at = 1
while at <= #ARGV do
  local count = tonumber(ARGV[at + 1])
  local job = { member = ARGV[at], first = at + 2, count = count }
  job.there = redis.call('ZSCORE', KEYS[1], job.member)
  if job.there then check(job.first, count) end
  jobs[#jobs + 1] = job
  at = at + 2 + count * WIDTH
end

-- Changes nothing: a full Redis refuses effects that need memory as the first write of a script, and the end of a job
-- frees more.
redis.call('ZREMRANGEBYRANK', KEYS[1], 1, 0)
local gone = {}
for i, job in ipairs(jobs) do
  -- Checked again: the arguments may name the same member twice.
  if job.there and redis.call('ZSCORE', KEYS[1], job.member) then
    apply(job.first, job.count)
    redis.call('ZREM', KEYS[1], job.member)
  else
    gone[#gone + 1] = i
  end
end
return gone
