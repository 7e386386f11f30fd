<?php

namespace App\Jobs;

/** A child's property wins over its parent's attribute. */
class OverridesAttributes extends WithAttributes
{
    public $tries = 2;

    public $timeout = 10;
}
