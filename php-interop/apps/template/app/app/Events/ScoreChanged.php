<?php

namespace App\Events;

use Illuminate\Broadcasting\Channel;
use Illuminate\Contracts\Broadcasting\ShouldBroadcast;

class ScoreChanged implements ShouldBroadcast
{
    public $broadcastQueue = 'broadcasts';

    public $points = 0;

    public function broadcastOn()
    {
        return new Channel('scores');
    }
}
