<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** Eloquent collections: full, empty, and of a custom class. */
class ModelCollection implements ShouldQueue
{
    use Queued;

    public $users;

    public $nobody;

    public $posts;

    public function __construct($users, $nobody, $posts)
    {
        $this->users = $users;
        $this->nobody = $nobody;
        $this->posts = $posts;
    }
}
