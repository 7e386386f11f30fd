<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Queue\Attributes\Backoff;
use Illuminate\Queue\Attributes\Connection;
use Illuminate\Queue\Attributes\Delay;
use Illuminate\Queue\Attributes\Queue;
use Illuminate\Queue\Attributes\Timeout;
use Illuminate\Queue\Attributes\Tries;

/** Attributes (Laravel 13) give queue, delay and limits; the object sets some limits, too. */
#[Queue('attributed')]
#[Connection('redis')]
#[Delay(4)]
#[Tries(5)]
#[Timeout(11)]
#[Backoff(6)]
class Routed implements ShouldQueue
{
    use Queued;

    public $tries;

    public $timeout = 33;

    public function __construct(public int $order = 23)
    {
        $this->tries = 7;
    }
}
