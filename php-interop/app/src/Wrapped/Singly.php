<?php

namespace App\Wrapped;

use Illuminate\Contracts\Queue\ShouldBeUnique;

/** A listener of which only one is queued at a time (Laravel 12.50 and later). */
class Singly extends OnPaid implements ShouldBeUnique
{
    public $uniqueFor = 600;

    public function uniqueId(Paid $event): string
    {
        return 'user-'.$event->user->id;
    }
}
