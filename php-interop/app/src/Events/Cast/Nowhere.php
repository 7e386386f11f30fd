<?php

namespace App\Events\Cast;

use Illuminate\Contracts\Broadcasting\ShouldBroadcast;

/** On no channel: nothing is published. */
class Nowhere implements ShouldBroadcast
{
    public $id = 1;

    public function broadcastOn()
    {
        return [];
    }
}
