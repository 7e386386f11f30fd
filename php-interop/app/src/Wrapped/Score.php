<?php

namespace App\Wrapped;

use Illuminate\Broadcasting\Channel;
use Illuminate\Broadcasting\InteractsWithSockets;
use Illuminate\Contracts\Broadcasting\ShouldBroadcast;

class Score implements ShouldBroadcast
{
    use InteractsWithSockets;

    public function __construct(public string $team, public int $score)
    {
        $this->socket = '123.456';
    }

    public function broadcastOn(): array
    {
        return [new Channel('scores')];
    }
}
