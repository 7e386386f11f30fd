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
--   4  most jobs to migrate     64, per set; negative for all
--   5  whether there are notify lists             1 or 0
--   6  whether reservations end                   1 or 0; 2 to hear whose have
--   7  how many jobs to look through             64; 0 to take the first ones
--   8  how far from the head to look             500
--   9  number of needles
--   10+ needles: of the jobs that are looked through, those that hold one of
--      these texts are taken
--   then three values per queue: notifications that the caller's BLPOP already
--      took from it; how many jobs at the head of the list the caller knows and
--      does not want; the last one of them
--
-- Returns per visited queue: the next second at which a job is due (or false),
-- how many payloads went to quarantine, how many jobs were migrated; how many of
-- the known jobs still stand at the head, and the first one of them (or an empty
-- text); whether no job is in sight behind those that were looked through; the
-- jobs without a needle from which the caller has to choose, which end the pop;
-- the migrated jobs whose reservations had ended, if the caller wants to hear of
-- them; then three values per reserved job: the element as it was in the list, and
-- either the offset of the digits of `attempts` in it and their new text, or -1
-- and the whole reserved member.
-- If Redis stops half way, jobs may be both in the list and reserved, never in neither.

local now, expires = tonumber(ARGV[1]), ARGV[2]
local want, limit = tonumber(ARGV[3]), tonumber(ARGV[4])
local notifies, expiring, tells = ARGV[5] == '1', ARGV[6] ~= '0', ARGV[6] == '2'
local window, horizon, needles = tonumber(ARGV[7]), tonumber(ARGV[8]), {}
for i = 1, tonumber(ARGV[9]) do needles[i] = ARGV[9 + i] end

local function is_wanted(job)
  if window == 0 then return true end
  for _, needle in ipairs(needles) do
    if string.find(job, needle, 1, true) then return true end
  end
  return false
end

-- How many known jobs still stand at the head. Other workers may have taken some,
-- so that the last one stands further ahead. The place where it stood is not
-- asked for: a job of the same bytes may stand there now.
local function known_jobs(list, known, last)
  if known == 0 then return 0 end
  local at = redis.pcall('LPOS', list, last, 'MAXLEN', known)
  -- Redis before 6.0.6 has no LPOS: the caller looks at all jobs again.
  return type(at) == 'number' and at + 1 or 0
end

-- Removes jobs from a list, by their places behind the first `start` jobs.
local function remove(list, start, places)
  if start == 0 and places[#places] == #places then
    redis.call('LTRIM', list, #places, -1)
    return
  end
  -- To remove each job by its bytes would compare it with all jobs before it.
  local taken = 'artisand:taken'
  for _, place in ipairs(places) do redis.call('LSET', list, start + place - 1, taken) end
  redis.call('LREM', list, #places, taken)
end

local reply = {}

-- Reserves jobs of one queue; returns true if the pop ends here.
local function pop(queue)
  local list, delayed = KEYS[queue * 5 + 1], KEYS[queue * 5 + 2]
  local reserved, notify = KEYS[queue * 5 + 3], KEYS[queue * 5 + 4]
  local quarantine, given = KEYS[queue * 5 + 5], 10 + #needles + queue * 3
  local woken = tonumber(ARGV[given])

  local tell = notifies and notify
  local migrated, next_delayed = migrate(delayed, list, tell, now, limit)
  local expired, next_expired, lost = 0, nil, nil
  if expiring then expired, next_expired, lost = migrate(reserved, list, tell, now, limit) end

  local start = known_jobs(list, tonumber(ARGV[given + 1]), ARGV[given + 2])
  local most = window == 0 and want or math.min(window, horizon - start)
  local jobs = most > 0 and redis.call('LRANGE', list, start, start + most - 1) or {}
  local first = start > 0 and redis.call('LINDEX', list, 0) or ''
  local is_end = (#jobs < most or start + #jobs >= horizon) and 1 or 0
  local shown, members, bad, places, room = {}, {}, {}, {}, want
  local entry = { false, 0, migrated + expired, start, first, is_end, shown, tells and lost or {} }
  for place, job in ipairs(jobs) do
    if not is_wanted(job) then
      -- The caller may choose it: it holds a slot, so that no later job takes the last one.
      shown[#shown + 1] = job
      room = room - 1
    elseif room <= 0 then
      entry[6] = 0
      break
    else
      places[#places + 1] = place
      local offset, text, member = reserve(job)
      if offset then
        room = room - 1
        members[#members + 1] = expires
        members[#members + 1] = member
        entry[#entry + 1] = job
        entry[#entry + 1] = offset
        entry[#entry + 1] = text
      else
        bad[#bad + 1] = job
      end
    end
  end
  if #places > 0 then
    begin(reserved)
    call_in_chunks('RPUSH', quarantine, bad)
    call_in_chunks('ZADD', reserved, members)
    remove(list, start, places)
  end
  if notifies then take_notifications(list, notify, #places, woken) end
  entry[2] = #bad
  want = want - #members / 2
  if expiring and #members > 0 then
    next_expired = math.min(next_expired or math.huge, tonumber(expires))
  end
  entry[1] = next_due(next_delayed, next_expired)
  reply[#reply + 1] = entry
  return #shown > 0
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
