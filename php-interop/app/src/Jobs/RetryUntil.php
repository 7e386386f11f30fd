<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** Limits given by methods. */
class RetryUntil implements ShouldQueue
{
    use Queued;

    public $order = 18;

    public function retryUntil(): \DateTimeInterface
    {
        return now()->addMinutes(10);
    }

    public function backoff(): array
    {
        return [2, 4];
    }
}
