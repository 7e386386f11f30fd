<?php

namespace App\Events\Cast;

/** What the parent declares comes after its own. */
class Child extends Announced
{
    public $own = 'first';

    public $nothing = 'something';

    public function broadcastOn()
    {
        return ["child.{$this->id}", "own-$this->own"];
    }
}
