<?php

namespace App\Events\Cast;

use Illuminate\Broadcasting\Channel;
use Illuminate\Broadcasting\InteractsWithBroadcasting;
use Illuminate\Broadcasting\InteractsWithSockets;
use Illuminate\Contracts\Broadcasting\ShouldBroadcast;

class SentEverywhere implements ShouldBroadcast
{
    use InteractsWithBroadcasting, InteractsWithSockets;

    public $second = ['only' => 'for the second'];

    public function __construct($connections)
    {
        $this->broadcastVia($connections);
    }

    public function broadcastOn()
    {
        return [new Channel('all')];
    }
}
