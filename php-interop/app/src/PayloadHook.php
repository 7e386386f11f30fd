<?php

namespace App;

/**
 * With `INTEROP_PAYLOAD_HOOK` set: a payload hook that says what it was given. With the values `hang`, `die` and
 * `throw` it does so in artisand's helper, and with `set` it sets a field that is there.
 */
final class PayloadHook
{
    public static function add($connection, $queue, array $payload): array
    {
        $mode = getenv('INTEROP_PAYLOAD_HOOK');
        if (strpos((string) cli_get_process_title(), 'artisand: php helper') === 0) {
            while ($mode === 'hang') {
                usleep(10_000);
            }
            if ($mode === 'die') {
                exit(7);
            }
            if ($mode === 'throw') {
                throw new \RuntimeException('thrown by a hook');
            }
        }
        $job = $payload['data']['command'];
        $fields = ['tenant' => 7, 'given' => [$connection, $queue, is_object($job) ? $job->id : null, array_keys($payload)]];

        return $fields + ($mode === 'set' ? ['displayName' => 'set'] : []);
    }
}
