<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** The same without SerializesModels: here the private properties of the parent survive. */
class VisibilityNative extends VisibilityBase implements ShouldQueue
{
    use QueuedNatively;

    public $open = 'open value';

    protected $guarded;

    private $secret;

    public readonly int $fixed;

    public static $shared = 'never on the wire';

    public function __construct()
    {
        $this->fillParent();
        $this->guarded = 'guarded value';
        $this->secret = 'secret of the child';
        $this->fixed = 7;
    }
}
