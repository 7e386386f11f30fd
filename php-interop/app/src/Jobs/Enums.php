<?php

namespace App\Jobs;

use App\Enums\Status;
use App\Enums\Suit;
use Illuminate\Contracts\Queue\ShouldQueue;

/** Backed and pure enums, one case several times. */
class Enums implements ShouldQueue
{
    use Queued;

    public Suit $suit = Suit::Hearts;

    public Status $status;

    public Status $again;

    public array $all;

    public ?Status $none = null;

    public function __construct()
    {
        $this->status = Status::Live;
        $this->again = Status::Live;
        $this->all = [Status::Draft, Status::Live, 'suit' => Suit::Spades, 'same' => Suit::Spades];
    }
}
