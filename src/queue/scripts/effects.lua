-- Shared functions of finish.lua, ack.lua and push_once.lua; put in front of each.
--
-- An effect is eight arguments: its kind, a key, a value, and five that depend on the kind:
--   `push`    list     payload  -      notify  claim  owner  seconds
--   `later`   set      payload  score  -       claim  owner  seconds
--   `append`  list     value    -      -       -      -      -
--   `unlock`  lock     owner, or empty to free it for any holder
-- Keys are positions in KEYS, 0 for none.

local WIDTH = 8

-- Fails before anything is written if a key has the wrong type: half of the
-- effects would be worse than none.
local function check(first, count)
  for at = first, first + (count - 1) * WIDTH, WIDTH do
    local what = ARGV[at]
    local expected = (what == 'push' or what == 'append') and 'list' or what == 'later' and 'zset' or 'string'
    local found = redis.call('TYPE', KEYS[tonumber(ARGV[at + 1])]).ok
    if found ~= expected and found ~= 'none' then
      error('a key is a ' .. found .. ' and should be a ' .. expected .. ': ' .. KEYS[tonumber(ARGV[at + 1])])
    end
  end
end

local function claim(key, owner, seconds)
  if not key then return true end
  if seconds == '0' then return redis.call('SETNX', key, owner) == 1 end
  return redis.call('SET', key, owner, 'EX', seconds, 'NX') and true or false
end

-- Returns how many jobs were not pushed because their lock was taken.
local function apply(first, count)
  local locked = 0
  for at = first, first + (count - 1) * WIDTH, WIDTH do
    local what, key, value = ARGV[at], KEYS[tonumber(ARGV[at + 1])], ARGV[at + 2]
    local function own(position) return KEYS[tonumber(ARGV[at + position])] end
    if what == 'append' then
      redis.call('RPUSH', key, value)
    elseif what == 'unlock' then
      if value == '' or redis.call('GET', key) == value then redis.call('DEL', key) end
    elseif claim(own(5), ARGV[at + 6], ARGV[at + 7]) then
      if what == 'later' then
        redis.call('ZADD', key, ARGV[at + 3], value)
      else
        redis.call('RPUSH', key, value)
        if own(4) then redis.call('RPUSH', own(4), '1') end
      end
    else
      locked = locked + 1
    end
  end
  return locked
end
