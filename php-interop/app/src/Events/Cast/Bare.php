<?php

namespace App\Events\Cast;

use Illuminate\Contracts\Broadcasting\ShouldBroadcast;

/** Nothing public: an empty payload. */
class Bare implements ShouldBroadcast
{
    private $secret = 'x';

    public function broadcastOn()
    {
        return 'bare';
    }
}
