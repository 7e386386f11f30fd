<?php

namespace App\Events;

use App\Routing;
use Illuminate\Broadcasting\Channel;
use Illuminate\Broadcasting\InteractsWithSockets;
use Illuminate\Contracts\Broadcasting\ShouldBroadcast;
use Illuminate\Queue\SerializesModels;

class ScoreChanged implements ShouldBroadcast
{
    use InteractsWithSockets, SerializesModels;

    public $tries = 3;

    public function __construct(public string $team, public int $score, public array $by = []) {}

    public function broadcastOn(): array
    {
        return [new Channel('scores')];
    }

    public function broadcastQueue(): ?string
    {
        return Routing::$queue;
    }
}
