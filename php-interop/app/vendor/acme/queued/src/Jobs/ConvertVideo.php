<?php

namespace Acme\Queued\Jobs;

/** Its text does not say that it is queued. */
final class ConvertVideo extends Convert
{
    public $tries = 2;

    protected $codec = 'av1';
}
