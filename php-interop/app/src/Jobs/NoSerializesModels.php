<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** Everything is on the wire, defaults and nulls too. */
class NoSerializesModels implements ShouldQueue
{
    use QueuedNatively;

    public $order = 21;

    public $unchanged = 'default';

    private $hidden = 'private';

    public ?string $nothing = null;
}
