-- Shared functions of pop.lua, claim.lua and migrate.lua; put in front of each.
--
-- Everything is added to its new place before it is removed from the old one: if
-- Redis stops half way, nothing is lost.

-- Begins to write, and changes nothing. A Redis whose memory is full refuses what
-- may need memory, but only as the first write of a script. A job that is taken or
-- ends frees memory, so that has to go on: Laravel's scripts remove first.
local function begin(set) redis.call('ZREMRANGEBYRANK', set, 1, 0) end

-- Calls a command with a long list of values, in chunks.
local function call_in_chunks(command, key, values)
  for first = 1, #values, 100 do
    redis.call(command, key, unpack(values, first, math.min(first + 99, #values)))
  end
end

-- The second at which the first member of a sorted set is due, or nil.
local function first_due(key)
  return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
end

-- Moves due members from a sorted set to the end of the list; returns how many,
-- when the first remaining one is due, and the members.
local function migrate(from, list, notify, now, limit)
  local first = first_due(from)
  if not first or first > now then return 0, first end
  local due = redis.call('ZRANGEBYSCORE', from, '-inf', now, 'LIMIT', 0, limit)
  if #due > 0 then
    begin(from)
    call_in_chunks('RPUSH', list, due)
    if notify then
      local ones = {}
      for i = 1, #due do ones[i] = '1' end
      call_in_chunks('RPUSH', notify, ones)
    end
    redis.call('ZREMRANGEBYRANK', from, 0, #due - 1)
  end
  return #due, first_due(from), due
end

-- Whether this text behind the number of attempts ends the outermost object.
local function is_ending(text)
  return text == '}' or text == ',"delay":null}' or string.find(text, '^,"delay":%-?%d+}$')
end

-- The fields that Horizon puts behind those of Laravel. A quote that looks like one
-- of these is none inside a text, and tags with brackets do not match.
local horizons = '^(.-),"type":"%a+","tags":[%[{][^%[%]{}]*[%]}],"silenced":%l+,"pushedAt":"[%d.]+"}$'

-- The reserved member of a job: offset and new digits of `attempts`, and the
-- member; or nothing if the payload cannot be decoded.
local function reserve(job)
  -- Laravel writes `attempts` last, or last before `delay`; Horizon puts four more
  -- fields behind that. In valid JSON this ending belongs to the outermost object,
  -- and of equal keys the last one counts. The caller finds out whether the rest is
  -- valid JSON.
  local near = math.max(#job - 63, 1)
  local _, at = string.find(job, ',"attempts":', near, true)
  if not at and string.find(job, ',"pushedAt":"', near, true) then
    _, at = string.find(job, ',"attempts":', math.max(#job - 255, 1), true)
  end
  if at then
    local digits, rest = string.match(job, '^(%d+)(.*)$', at + 1)
    local is_last = rest and is_ending(rest)
    if rest and not is_last then
      local laravels = string.match(rest, horizons)
      is_last = laravels and is_ending(laravels .. '}')
    end
    if is_last and #digits <= 9 and (digits == '0' or string.sub(digits, 1, 1) ~= '0') then
      local bumped = string.format('%d', digits + 1)
      return at, bumped, string.sub(job, 1, at) .. bumped .. rest
    end
  end

  local decoded, payload = pcall(cjson.decode, job)
  if not decoded or type(payload) ~= 'table' then return end
  local kind = type(payload.attempts)
  local attempts = tonumber(payload.attempts)
  if (kind ~= 'number' and kind ~= 'string') or not attempts then return end
  if attempts ~= math.floor(attempts) or math.abs(attempts) > 1e9 then return end

  -- Edit the text only if that provably changes the right key: there is one such
  -- key, and afterwards the outermost object has one more attempt.
  local first, last, text = string.find(job, '"attempts":(%d+)')
  if first and not string.find(job, '"attempts":', last + 1, true) then
    local bumped = string.format('%d', attempts + 1)
    local member = string.sub(job, 1, last - #text) .. bumped .. string.sub(job, last + 1)
    local again, edited = pcall(cjson.decode, member)
    if again and edited.attempts == attempts + 1 and tonumber(text) == attempts then
      return last - #text, bumped, member
    end
  end

  payload.attempts = attempts + 1
  local encoded, member = pcall(cjson.encode, payload)
  if not encoded then return end
  return -1, member, member
end

-- Removes notifications for `taken` jobs that left the list; the caller's BLPOP
-- has already removed `woken` of them.
local function take_notifications(list, notify, taken, woken)
  -- Notifications are hints: a list that cannot be written must not cost a job.
  if taken > woken then redis.pcall('LTRIM', notify, taken - woken, -1) end
  -- More notifications than jobs are useless: producers and consumers of
  -- different versions would let the list grow without end.
  local hints = redis.pcall('LLEN', notify)
  if type(hints) ~= 'number' or hints == 0 then return end
  local surplus = hints - redis.call('LLEN', list)
  if surplus > 0 then redis.pcall('LTRIM', notify, surplus, -1) end
end

-- The earlier of two seconds, each of which may be nil, as text; or false.
local function next_due(one, other)
  local due = one and other and math.min(one, other) or one or other
  return due and string.format('%.0f', math.min(math.ceil(due), 1e15)) or false
end
