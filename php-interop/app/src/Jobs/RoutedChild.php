<?php

namespace App\Jobs;

/** A property of a class beats the attribute of its parent. */
class RoutedChild extends Routed
{
    public $timeout = 44;

    public $deleteWhenMissingModels = true;
}
