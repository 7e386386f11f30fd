<?php

namespace App\Jobs;

use Illuminate\Bus\Queueable;
use Illuminate\Contracts\Queue\ShouldBeUnique;
use Illuminate\Contracts\Queue\ShouldBeUniqueUntilProcessing;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Queue\Middleware\WithoutOverlapping;

/** Every limit that a method can return. */
class Methods implements ShouldQueue, ShouldBeUniqueUntilProcessing
{
    use Queueable;

    public $tries = 1;

    public function tries()
    {
        return 7;
    }

    public function backoff()
    {
        return [2, 4];
    }

    public function retryUntil()
    {
        return now()->addHour();
    }

    public function uniqueId()
    {
        return 'x';
    }

    public function uniqueFor()
    {
        return 60;
    }

    public function uniqueVia()
    {
        return app('cache')->store('file');
    }

    public function displayName()
    {
        return 'Nice name';
    }

    public function middleware()
    {
        return [new WithoutOverlapping('x')];
    }

    public function __invoke(ShouldBeUnique $unique, int|string $number, self $other)
    {
    }
}
