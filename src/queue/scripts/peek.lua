-- Shows the first pending jobs of one queue, so that the caller can choose.
--
-- KEYS  queues:default, :delayed, :reserved, :notify, :quarantine, as for pop.lua
-- ARGV
--   1  now                      1760000000
--   2  most jobs to migrate     1000, per set; negative for all
--   3  whether there are notify lists             1 or 0
--   4  whether reservations end                   1 or 0
--   5  position of the first job to show          0
--   6  how many jobs to show    500
--
-- Returns the next second at which a job is due (or false), how many jobs were
-- migrated, then the elements. Only due jobs move.

local list, delayed, reserved = KEYS[1], KEYS[2], KEYS[3]
local now, limit, expiring = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[4] == '1'
local tell = ARGV[3] == '1' and KEYS[4]
local migrated, next_delayed = migrate(delayed, list, tell, now, limit)
local expired, next_expired = 0, nil
if expiring then expired, next_expired = migrate(reserved, list, tell, now, limit) end
local reply = { next_due(next_delayed, next_expired), migrated + expired }
for _, job in ipairs(redis.call('LRANGE', list, tonumber(ARGV[5]), tonumber(ARGV[5]) + tonumber(ARGV[6]) - 1)) do
  reply[#reply + 1] = job
end
return reply
