<?php

namespace App\Wrapped;

use Illuminate\Queue\Middleware\WithoutOverlapping;

/** A listener with middleware, which its jobs contain. */
class Guarded extends OnPaid
{
    public function middleware(): array
    {
        return [(new WithoutOverlapping('paid'))->expireAfter(60)];
    }

    /** Writes the locks that are held while it runs. */
    public function handle(Paid $event): void
    {
        Locks::record();
    }
}
