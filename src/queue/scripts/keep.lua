-- Keeps the right to bring what is in a list of ours to where it belongs.
--
-- KEYS  1  artisand:failed-spool:lease
-- ARGV  1  who we are
--       2  seconds it lives
--
-- Returns 1 if it is still ours, 0 if it has ended, whoever has it now.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
