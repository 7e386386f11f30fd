-- Reserves pending jobs of one or more queues, the first queue first.
--
-- KEYS  five per queue:
--   queues:default              list of pending jobs, oldest at the left
--   queues:default:delayed      zset, score = second at which the job is due
--   queues:default:reserved     zset, score = second at which the reservation ends
--   queues:default:notify       list of one `1` per job, for workers that block
--   queues:default:quarantine   list of payloads that cannot be decoded
-- ARGV
--   1  now                      1760000000
--   2  end of the reservations  1760000090
--   3  most jobs to reserve     64
--   4  most jobs to migrate     1000, per set; negative for all
--   5  whether there are notify lists             1 or 0
--   6  whether reservations end                   1 or 0
--   7  number of needles        0 to take every job
--   8+ needles: a job must hold one of these texts to be taken. The first job
--      without any ends the pop, also for the later queues.
--   then per queue: notifications that the caller's BLPOP already took from it
--
-- Returns per visited queue: the next second at which a job is due (or false),
-- how many payloads went to quarantine, how many jobs were migrated, whether a
-- job without a needle ended the pop, then three values per reserved job: the
-- element as it was in the list, and either the offset of the digits of
-- `attempts` in it and their new text, or -1 and the whole reserved member.
-- If Redis stops half way, jobs may be both in the list and reserved, never in neither.

local now, expires = tonumber(ARGV[1]), ARGV[2]
local want, limit = tonumber(ARGV[3]), tonumber(ARGV[4])
local notifies, expiring = ARGV[5] == '1', ARGV[6] == '1'
local needles = {}
for i = 1, tonumber(ARGV[7]) do needles[i] = ARGV[7 + i] end

local function is_wanted(job)
  if #needles == 0 then return true end
  for _, needle in ipairs(needles) do
    if string.find(job, needle, 1, true) then return true end
  end
  return false
end

local reply = {}

-- Reserves jobs of one queue; returns true if the pop ends here.
local function pop(queue)
  local list, delayed = KEYS[queue * 5 + 1], KEYS[queue * 5 + 2]
  local reserved, notify = KEYS[queue * 5 + 3], KEYS[queue * 5 + 4]
  local quarantine, woken = KEYS[queue * 5 + 5], tonumber(ARGV[8 + #needles + queue])

  local tell = notifies and notify
  local migrated, next_delayed = migrate(delayed, list, tell, now, limit)
  local expired, next_expired = 0, nil
  if expiring then expired, next_expired = migrate(reserved, list, tell, now, limit) end
  migrated = migrated + expired

  local jobs = redis.call('LRANGE', list, 0, want - 1)
  local entry, members, bad, looked = { false, 0, migrated, 0 }, {}, {}, 0
  for _, job in ipairs(jobs) do
    if not is_wanted(job) then
      entry[4] = 1
      break
    end
    looked = looked + 1
    local offset, text, member = reserve(job)
    if offset then
      members[#members + 1] = expires
      members[#members + 1] = member
      entry[#entry + 1] = job
      entry[#entry + 1] = offset
      entry[#entry + 1] = text
    else
      bad[#bad + 1] = job
    end
  end
  if looked > 0 then
    call_in_chunks('RPUSH', quarantine, bad)
    call_in_chunks('ZADD', reserved, members)
    redis.call('LTRIM', list, looked, -1)
  end
  if notifies then take_notifications(list, notify, looked, woken) end
  entry[2] = #bad
  want = want - #members / 2
  if expiring and #members > 0 then
    next_expired = math.min(next_expired or math.huge, tonumber(expires))
  end
  entry[1] = next_due(next_delayed, next_expired)
  reply[#reply + 1] = entry
  return entry[4] == 1
end

for queue = 0, #KEYS / 5 - 1 do
  if want <= 0 then break end
  local done, result = pcall(pop, queue)
  if not done then
    -- Jobs of earlier queues are reserved and must reach the caller; the error
    -- comes again with the next pop.
    if #reply == 0 then
      return redis.error_reply(type(result) == 'table' and result.err or tostring(result))
    end
    break
  end
  if result then break end
end
return reply
