<?php

namespace App\Events\Cast;

use Illuminate\Broadcasting\{Channel as Open, InteractsWithSockets, PresenceChannel};
use Illuminate\Broadcasting as B;
use Illuminate\Contracts\Broadcasting\ShouldBroadcast;

/** Several channels, a name and data of its own; PHP serializes it as it is. */
class Rooms implements ShouldBroadcast
{
    use InteractsWithSockets;

    public function __construct(public int $room, protected object $by, private array $data) {}

    public function broadcastOn(): array
    {
        return [
            new Open('rooms'),
            new B\PrivateChannel('room.'.$this->room), // its own
            new PresenceChannel("room.{$this->room}.{$this->by->name}"),
            new \Illuminate\Broadcasting\EncryptedPrivateChannel('room.'.$this->room),
            'plain-'.$this->data['key'],
        ];
    }

    public function broadcastAs(): string
    {
        return 'room/changed';
    }

    public function broadcastWith(): array
    {
        return array(
            'room' => $this->room,
            'by' => ['name' => $this->by->name, 'object' => $this->by],
            'label' => 'Nr. '.$this->room,
            'data' => $this->data,
            5 => 'five',
            'six',
        );
    }
}
