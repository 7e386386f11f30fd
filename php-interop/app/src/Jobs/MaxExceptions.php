<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** Unlimited tries, two exceptions. */
class MaxExceptions implements ShouldQueue
{
    use Queued;

    public int $tries = 0;

    public int $maxExceptions = 2;
}
