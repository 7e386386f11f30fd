<?php

namespace App\Jobs\Concerns;

trait Countable
{
    public $counted = 0;

    private $counter = 'trait';
}
