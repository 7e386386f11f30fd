<?php

namespace App\Jobs;

use Illuminate\Bus\Queueable;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Queue\Attributes\Backoff;
use Illuminate\Queue\Attributes\Connection;
use Illuminate\Queue\Attributes\Delay;
use Illuminate\Queue\Attributes\DeleteWhenMissingModels;
use Illuminate\Queue\Attributes\FailOnTimeout;
use Illuminate\Queue\Attributes\MaxExceptions;
use Illuminate\Queue\Attributes\Queue;
use Illuminate\Queue\Attributes\Timeout;
use Illuminate\Queue\Attributes\Tries;
use Illuminate\Queue\Attributes\UniqueFor;

/** Laravel 13 reads these; older versions see comments. */
#[Tries(9)]
#[Timeout(45)]
#[Backoff(3, 6, 9)]
#[MaxExceptions(2)]
#[FailOnTimeout]
#[UniqueFor(900)]
#[Connection('redis')]
#[Queue('attributed')]
#[Delay(30)]
#[DeleteWhenMissingModels]
class WithAttributes implements ShouldQueue
{
    use Queueable;

    public $tries = 4;

    public function handle()
    {
    }
}
