<?php

namespace App;

use Illuminate\Support\Facades\Redis;

/**
 * Stands for Horizon's look at long waits (`INTEROP_HORIZON`): takes its lock, and says which process looked.
 *
 * It wants the event as Horizon before 5.10 does.
 */
final class LongWaits
{
    public function handle(SupervisorLooped $event): void
    {
        $redis = Redis::connection('interop');
        if (! $redis->setnx('interop-horizon:monitor:time-to-clear', 1)) {
            return;
        }
        $redis->expire('interop-horizon:monitor:time-to-clear', 60);
        $redis->rpush('interop:waits', cli_get_process_title());
        if (getenv('INTEROP_HORIZON') === 'throw') {
            throw new \RuntimeException('no mail');
        }
    }
}
