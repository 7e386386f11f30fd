<?php

namespace App\Events\Cast;

use Illuminate\Contracts\Broadcasting\ShouldBroadcast;

/** Since Laravel 12 the job asks the event for middleware, and tells it of its failure. */
class Guarded implements ShouldBroadcast
{
    public $id = 5;

    public function broadcastOn()
    {
        return 'guarded';
    }

    public function middleware(): array
    {
        return [];
    }
}
