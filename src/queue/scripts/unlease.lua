-- Gives up the right to bring what is in a list of ours to where it belongs.
--
-- KEYS  1  artisand:failed-spool:lease
-- ARGV  1  who we are
--
-- Returns 1 if it was ours, 0 if not.

if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
