<?php

namespace App\Wrapped;

use App\Seen;
use Illuminate\Contracts\Queue\ShouldQueue;

class OnPaid implements ShouldQueue
{
    public $tries = 2;

    public function handle(Paid $event): void
    {
        Seen::record($event);
    }

    public function other(Paid $event): void
    {
        Seen::record($event);
    }
}
