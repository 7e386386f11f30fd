<?php

namespace App\Jobs;

/** Where it goes and when are defaults of the class: from Laravel 9.4 on not on the wire. */
class Elsewhere extends Plain
{
    public $queue = 'elsewhere';

    public $delay = 3;

    public $timeout = 21;
}
