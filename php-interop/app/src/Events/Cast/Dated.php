<?php

namespace App\Events\Cast;

use Carbon\CarbonImmutable;
use DateTimeImmutable;
use Illuminate\Broadcasting\Channel;
use Illuminate\Contracts\Broadcasting\ShouldBroadcast;
use Illuminate\Queue\SerializesModels;
use Illuminate\Support\Carbon;

class Dated implements ShouldBroadcast
{
    use SerializesModels;

    public $again;

    public function __construct(
        public Carbon $at,
        public CarbonImmutable $later,
        public DateTimeImmutable $plain,
        public object $object
    ) {
        $this->again = [$at, $object];
    }

    public function broadcastOn()
    {
        return new Channel('dates');
    }
}
