<?php

namespace App\Wrapped;

use Illuminate\Queue\Middleware\WithoutOverlapping;

/** A listener with middleware, which travels with it. */
class Guarded extends OnPaid
{
    public function middleware(): array
    {
        return [(new WithoutOverlapping('paid'))->expireAfter(60)];
    }

    /** Writes down the locks that are held around it. */
    public function handle(Paid $event): void
    {
        Locks::record();
    }
}
