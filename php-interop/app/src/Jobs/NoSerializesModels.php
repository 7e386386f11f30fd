<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** The bytes contain everything, including defaults and nulls. */
class NoSerializesModels implements ShouldQueue
{
    use QueuedNatively;

    public $order = 21;

    public $unchanged = 'default';

    private $hidden = 'private';

    public ?string $nothing = null;
}
