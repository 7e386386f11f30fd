<?php

namespace App\Events\Cast;

use Illuminate\Broadcasting\InteractsWithSockets;
use Illuminate\Broadcasting\PrivateChannel;
use Illuminate\Contracts\Broadcasting\ShouldBroadcast;
use Illuminate\Queue\SerializesModels;

/** Every plain value as a public property; the defaults are left out of the bytes since Laravel 9.4. */
class Announced implements ShouldBroadcast
{
    use InteractsWithSockets, SerializesModels;

    public $text = "zażółć \u{1F680} \u{2028} \"q\" \\ / </script> \x7f\x01\t";

    public $floats = [1.0, 0.1, -0.0, 1e25, 1e-7, 1e15, 1e17, 100000.0, 2.5e-300];

    public $nested = ['a' => ['b' => [1, [2, []]], 'empty' => []], 3 => 'x', '' => null];

    public $nothing;

    public $broadcastQueue = 'casts';

    public bool $yes = true;

    protected $hidden = 'not shown';

    public function __construct(public int $id = 7, public ?string $name = null) {}

    public function broadcastOn()
    {
        return new PrivateChannel('orders.'.$this->id);
    }
}
