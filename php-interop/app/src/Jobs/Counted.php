<?php

namespace App\Jobs;

use Illuminate\Bus\Queueable;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Foundation\Bus\Dispatchable;
use Illuminate\Queue\InteractsWithQueue;
use Illuminate\Queue\SerializesModels;
use Illuminate\Support\Facades\Redis;

/** The cheapest job: appends its number to the Redis list `interop:done` (no prefix). */
class Counted implements ShouldQueue
{
    use Dispatchable, InteractsWithQueue, Queueable, SerializesModels;

    public int $n;

    public function __construct(int $n)
    {
        $this->n = $n;
    }

    public function handle(): void
    {
        Redis::connection('interop')->rpush('interop:done', $this->n);
    }
}
