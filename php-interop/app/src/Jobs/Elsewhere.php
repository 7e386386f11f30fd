<?php

namespace App\Jobs;

/** Queue and delay are class defaults: since Laravel 9.4 the bytes do not contain them. */
class Elsewhere extends Plain
{
    public $queue = 'elsewhere';

    public $delay = 3;

    public $timeout = 21;
}
