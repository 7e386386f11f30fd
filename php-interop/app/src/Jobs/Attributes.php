<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Queue\Attributes\Backoff;
use Illuminate\Queue\Attributes\FailOnTimeout;
use Illuminate\Queue\Attributes\MaxExceptions;
use Illuminate\Queue\Attributes\Timeout;
use Illuminate\Queue\Attributes\Tries;

/** Limits as attributes (Laravel 13); older versions ignore them. */
#[Tries(5)]
#[Timeout(11)]
#[Backoff(3, 6)]
#[MaxExceptions(4)]
#[FailOnTimeout]
class Attributes implements ShouldQueue
{
    use Queued;

    public $order = 19;
}
