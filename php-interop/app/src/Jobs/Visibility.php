<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** Every visibility, and a private property with the same name as one of the parent class. */
class Visibility extends VisibilityBase implements ShouldQueue
{
    use Queued;

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
